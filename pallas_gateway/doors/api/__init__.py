"""`/api/v1`: one app with the routes of all subjects, their errors, and what their requests have in common."""
