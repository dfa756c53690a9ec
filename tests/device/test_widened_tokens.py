"""Up to how many tokens products widen 8 bits: as measured on a kind of GPU, or those of a decode step."""

from service.device import widened_tokens as table
from service.device.widened_tokens import WidenedTokens, widened_tokens, written_table
from tests.device.devices import NamedDevice


def test_what_was_measured_on_a_kind_of_gpu_is_written_kept_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "FILE", tmp_path / "widened_tokens.json")
    measured, other = WidenedTokens(48, 16), WidenedTokens(128, 0)
    hopper = NamedDevice(0, "gpu", "H100", compute_capability="9.0")
    for kind, numbers in (("H100", measured), ("L4", other)):
        table.kept_table.cache_clear()
        table.FILE.write_text(written_table(kind, numbers))
    table.kept_table.cache_clear()
    try:
        assert widened_tokens(hopper) == measured
        assert widened_tokens(NamedDevice(0, "gpu", "L4", compute_capability="8.9")) == other
        assert widened_tokens(NamedDevice(0, "gpu", "H200", compute_capability="9.0")) == (64, 64)
    finally:
        table.kept_table.cache_clear()
