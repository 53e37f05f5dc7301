"""What all HTTP APIs have in common: the app, its guards, access, bodies and errors."""
