"""`levserve` with a batch whose answered requests are counted in a file, a byte each, whatever ends the process.

What a process that ends by itself took of a processor after its start is in a second file.
"""

import atexit
import os
import time
from pathlib import Path

from service.cli import main
from service.offline.shards import command

api_of = command.api_of


def counted(settings, loaded, metrics):
    api = api_of(settings, loaded, metrics)
    begin_s = time.process_time()
    spent = Path(os.environ["ANSWERED"]).with_suffix(".seconds")
    atexit.register(lambda: spent.write_text(str(time.process_time() - begin_s)))
    count = os.open(os.environ["ANSWERED"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    async def answer(scope, receive, send):
        await api(scope, receive, send)
        os.write(count, b".")

    return answer


if __name__ == "__main__":
    command.api_of = counted
    main()
