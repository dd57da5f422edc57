"""The whole demo: what it prints must be true."""

import re
from pathlib import Path

from combemb.learning.run_folder import SEARCHES
from tests.commands import done, refused


def test_demo_beats_pixels_and_itq_on_novel_digits_and_draws_its_searches(tmp_path: Path):
    folder = tmp_path / "digits"
    shown = done("demo", "--out", folder).stdout
    novel = {line.split(",")[0]: float(line.split()[-1]) for line in shown.splitlines() if "bits  " in line}
    assert novel["CombEmb"] > 1.1 * novel["plain pixels"]
    assert novel["CombEmb"] > 1.1 * novel["ITQ"]
    low, high = re.search(r"discovery, number not given: \d+ novel classes \(between (\d+) and (\d+)\)", shown).groups()
    assert int(low) <= 3 <= int(high)
    assert (folder / SEARCHES).read_bytes().startswith(b"\x89PNG")
    assert (folder / "weights.safetensors").exists()
    assert "holds a run; use overwrite to replace it" in refused("demo", "--out", folder, "--quiet")
