"""A Levanter run of about 100 KB, to try serving one."""
