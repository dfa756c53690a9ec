"""`levserve serve` where one executable, which requests can do without, cannot be compiled; settings as ever."""

import service.start.executables as start
from service.cli import main
from service.compile.aot import compile_timed


def compile_unless(program):
    if program.name.startswith("layers") and program.name.endswith("-rows8"):
        raise RuntimeError("no such instruction")
    return compile_timed(program)


if __name__ == "__main__":
    start.compile_timed = compile_unless
    main()
