"""What the service must withstand, against a real process over loopback: `make soak`."""
