"""What the gateway says of itself to people: the front page and the installed documentation."""
