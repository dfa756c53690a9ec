"""The format of gpt-oss, whose answers are messages with channels; a call is a message with a recipient.

Source: https://cookbook.openai.com/articles/openai-harmony
"""

from service.text.tools.format import ToolFormat

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
# One call an answer: its result comes before the next.
FORMAT = ToolFormat("openai", allows_several=False, special_parts=MARKS, signs=(r"<\|channel\|>", r"<\|message\|>"))
