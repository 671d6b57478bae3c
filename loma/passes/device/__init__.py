"""Numbers of tensor functions on devices of their own, so that the host waits for none of them."""
