"""Groups of commands that list what there is where no command is named."""

from typing import Any

from typer.core import TyperGroup

LIST = "list"


class Listing(TyperGroup):
    """A group whose options without a command are those of its command `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a command line, which may begin with an option of `list`."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [LIST, *args]
        return super().parse_args(ctx, args)
