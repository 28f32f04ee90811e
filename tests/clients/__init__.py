"""Do the libraries that applications are written with see what they expect? Each of them, through the gateway."""
