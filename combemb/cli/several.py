"""Options that take several values, as in `--bits 24 48`; also `--bits 24 --bits 48`."""

from typing import Any

from typer.core import TyperCommand


class Several(TyperCommand):
    """A command whose repeatable options take all values up to the next option.

    Values that follow the name at once belong to it, so arguments come before such an option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the name of an option before each of its values."""
        repeatable = {name for param in self.params if getattr(param, "multiple", False) for name in param.opts}
        spread: list[str] = []
        current, n_values = "", 0
        for place, text in enumerate(args):
            if text == "--":
                spread += args[place:]
                break
            if text.startswith("-") and not text[1:2].isdigit():
                current, n_values = (text if text in repeatable else ""), 0
                spread.append(text)
                continue
            if current and n_values:
                spread.append(current)
            n_values += 1
            spread.append(text)
        return super().parse_args(ctx, spread)
