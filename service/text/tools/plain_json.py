"""The format for other families: an answer that is one JSON object a line, each with a name and arguments."""

from service.text.tools.format import ToolFormat

FORMAT = ToolFormat("json", between="\n")
