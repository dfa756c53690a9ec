"""What must hold on a device before anyone serves on it, in parts that resume: `make device-check`."""
