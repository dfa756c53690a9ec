"""Makes the files that PyTorch itself has written, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.weights.pickled.make_torch_files

The service never imports torch; what this writes is committed.
"""

from collections import OrderedDict
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "files"


def state() -> OrderedDict[str, torch.Tensor]:
    """Return tensors of many kinds; each holds numbers that count up from its place in the dictionary."""
    plain = torch.arange(24.0).reshape(4, 6)
    return OrderedDict(
        plain=plain,
        tied=plain,
        view=plain[1:3],
        transposed=torch.arange(40.0).reshape(5, 8).t(),
        strided=torch.arange(40.0).reshape(10, 4)[::2, 1:3],
        bfloat16=torch.arange(15.0).to(torch.bfloat16).reshape(3, 5),
        float16=torch.arange(7.0).half(),
        parameter=torch.nn.Parameter(torch.arange(4.0).reshape(2, 2)),
        wide=torch.arange(6.0).expand(1, -1),
    )


def main() -> None:
    """Write each form."""
    FOLDER.mkdir(exist_ok=True)
    for protocol in (2, 4):
        torch.save(state(), FOLDER / f"zip_protocol_{protocol}.bin", pickle_protocol=protocol)
        path = FOLDER / f"legacy_protocol_{protocol}.bin"
        torch.save(state(), path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(float(parameter.numel())).reshape(parameter.shape))
    torch.save(module.state_dict(), FOLDER / "module.bin")  # with the versions of its modules


if __name__ == "__main__":
    main()
