"""What can be left out: one folder for each feature, with all that belongs to it."""
