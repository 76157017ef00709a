"""The one door to Docker: a Protocol and its Docker form."""
