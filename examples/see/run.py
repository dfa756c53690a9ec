"""Ask a model about an image, through OpenAI's client.

python -m examples.see.run                            # about a drawing of shapes, by the demo model
python -m examples.see.run photo.jpg "What is this?" --model-uri hf://Qwen/Qwen3-VL-2B-Instruct
"""

import argparse
import base64
import io
import mimetypes
import random
from collections.abc import Sequence
from pathlib import Path

from openai import OpenAI

from examples.demo_service import demo_service
from examples.see.drawings import QUESTIONS, draw, scene

MODEL = "sees"
DEMO = Path(__file__).with_name("model")
QUESTION = QUESTIONS["describe"][0]


def data_url(content: bytes, media_type: str) -> str:
    """Return an image as it is sent: in the request itself."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def drawing(seed: int | None = None) -> bytes:
    """Return a drawing of shapes as a PNG."""
    chosen, output = random.Random(seed), io.BytesIO()
    draw(scene(chosen), chosen).save(output, "PNG")
    return output.getvalue()


def answer(client: OpenAI, url: str, question: str) -> str:
    """Ask a question about an image."""
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": content}],  # pyright: ignore[reportArgumentType]
        temperature=0,
    )
    return reply.choices[0].message.content or ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, serve the model, and print its answers."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="an image; without it, shapes are drawn")
    parser.add_argument("question", nargs="?", default=QUESTION, help="what to ask (%(default)s)")
    parser.add_argument("--model-uri", default=str(DEMO), help="MODEL_URI of a model that sees (the demo model)")
    parser.add_argument("--save", type=Path, help="where to write the drawing")
    options = parser.parse_args(arguments)
    if options.file is None:
        content, media_type = drawing(), "image/png"
        if options.save is not None:
            options.save.write_bytes(content)
        questions = [asked for kind in QUESTIONS.values() for asked in kind[:1]]
    else:
        content, questions = options.file.read_bytes(), [options.question]
        media_type = mimetypes.guess_type(options.file.name)[0] or "image/png"
    with demo_service(MODEL_URI=options.model_uri, MODEL_NAME=MODEL) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        for question in questions:
            print(f"> {question}\n{answer(client, data_url(content, media_type), question)}")


if __name__ == "__main__":
    main()
