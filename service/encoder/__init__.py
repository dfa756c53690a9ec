"""Token ids in, one vector per text out: texts of many requests are packed into steps of the device."""
