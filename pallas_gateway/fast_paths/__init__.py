"""One file for each part of a library that is made faster. The gateway answers every call correctly without them."""
