"""List, read and pull one repository of the Hub at HF_ENDPOINT, and print the result as JSON.

python -m tests.storage.hub_process URI CACHE
"""

import json
import sys
from pathlib import Path

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.location import parse_location
from service.storage.source import open_source
from tests.stored import contents

uri, root = sys.argv[1], Path(sys.argv[2])
progress = Progress()
source = open_source(parse_location(uri), cache_root=root)
objects = [info for info in source.list() if info.name != "README.md"]
config = next(info for info in objects if info.name == "config.json")
text = source.read(config).decode()
pulled = source.pull(objects, CheckpointCache(root, max_checkpoints=1), progress)
files = {name: len(data) for name, data in contents(pulled.path).items()}
done = [progress.bytes_done, progress.bytes_total]
print(json.dumps({"config": text, "files": files, "progress": done, "path": str(pulled.path)}))
