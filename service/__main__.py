"""The entry point of `levserve` and of `python -m service`."""

from typing import NoReturn

from service.start.imports import begin_quick_imports


def main() -> NoReturn:
    """Run the command line."""
    begin_quick_imports()
    from service.cli import main as run

    run()


if __name__ == "__main__":
    main()
