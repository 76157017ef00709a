"""One module per coding agent, listed in one dict."""
