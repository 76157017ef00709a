"""One session's two containers as commands use them: opened in order, spoken to over two protocols, closed for good."""
