"""Tables that the works published which this project builds on, with loma in them."""
