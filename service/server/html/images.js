"use strict";
// Images of the next message: chosen, pasted or dropped, made smaller if they are large, and shown with what is written.

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MAX_FILE_BYTES = 600_000; // of a file that is sent as it is
const MAX_EDGE_PIXELS = 1536;

/** Return an image file as a data URL. Rejects if the browser cannot read it. */
async function dataUrlOf(file) {
  const blob = file.size <= MAX_FILE_BYTES && IMAGE_TYPES.includes(file.type) ? file : await smaller(file);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

async function smaller(file) {
  const picture = await createImageBitmap(file), share = Math.min(1, MAX_EDGE_PIXELS / Math.max(picture.width, picture.height));
  const [width, height] = [picture.width, picture.height].map((size) => Math.max(1, Math.round(size * share)));
  const canvas = make("canvas", { width, height }), context = canvas.getContext("2d");
  context.fillStyle = "white"; // what is transparent
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, 0, 0, width, height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
}

const imageElements = (urls) => urls.map((src, index) => make("img", { src, alt: `Image ${index + 1}` }));

/**
 * Show the images of the next message, each with a button.
 *
 * `remove(index)` is called when one is pressed.
 */
function renderAttached(box, urls, remove) {
  box.hidden = urls.length === 0;
  box.replaceChildren(...imageElements(urls).map((image, index) => make("li", {}, image,
    button("×", () => remove(index), { ariaLabel: `Remove image ${index + 1}` }))));
}
