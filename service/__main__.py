"""`python -m service` is `levserve`."""

from service.cli import main

main()
