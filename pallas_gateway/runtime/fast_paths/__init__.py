"""What is only faster."""
