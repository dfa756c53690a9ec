"""Loading of weights: the bytes of a checkpoint, verified and turned into arrays on the host or the device."""
