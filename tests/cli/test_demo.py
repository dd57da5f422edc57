"""The demo's job, shortened nowhere: what it prints must hold."""

from pathlib import Path

import pytest

from combemb.cli import demo


def test_demo_beats_pixels_and_itq_on_novel_digits_and_draws_its_searches(tmp_path: Path):
    lines = list(demo.run(tmp_path / "digits", progress=False))
    novel = {line.split(",")[0]: float(line.split()[-1]) for line in lines if "bits  " in line}
    assert novel["CombEmb"] > 1.1 * novel["plain pixels"]
    assert novel["CombEmb"] > 1.1 * novel["ITQ"]
    assert any(line.startswith("discovery, not told how many: 3 novel classes") for line in lines)
    assert (tmp_path / "digits" / demo.PICTURE).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "digits" / "weights.safetensors").exists()
    with pytest.raises(ValueError, match="holds a run; use overwrite to replace it"):
        list(demo.run(tmp_path / "digits", progress=False))
