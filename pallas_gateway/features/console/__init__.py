"""The console: a single-page application in the browser, served as static files."""
