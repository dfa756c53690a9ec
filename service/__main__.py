"""`levserve`, which is `python -m service`."""

from typing import NoReturn

from service.start.imports import prepare


def main() -> NoReturn:
    """Run the command line, all of it imported quickly."""
    prepare()
    from service.cli import main as run

    run()


if __name__ == "__main__":
    main()
