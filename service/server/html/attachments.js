"use strict";
// What goes with the next message: images and files that were chosen, pasted or dropped.

/** Make these the images of the next message. */
function attach(images) {
  state.images = images;
  renderAttached(at("attached"), images, (index) => { attach(images.toSpliced(index, 1)); at("draft").focus(); });
  renderCode();
}

/** Make these the files of the next message. */
function attachTexts(files) {
  state.files = files;
  renderFiles(at("attached-files"), files, (file) => { attachTexts(state.files.filter((other) => other !== file)); at("draft").focus(); });
  renderCode();
}

/** Attach pictures as images, if the model sees, and all else as text. */
function attachFiles(files) {
  const pictures = files.filter(isPicture), texts = files.filter((file) => !isPicture(file));
  if (pictures.length && canSee()) attachPictures(pictures);
  else if (pictures.length) notice("image", `${state.model || "This model"} reads only text.`);
  for (const file of texts) attachText(file);
  at("draft").focus();
}

async function attachText(file) {
  const attached = { name: file.name, text: null }, others = () => state.files.filter((other) => other !== attached);
  attachTexts([...state.files, attached]);
  try {
    attached.text = await textOf(file); // meanwhile others may be attached
    attachTexts(state.files);
    announce(`${file.name} is attached.`);
  } catch (error) {
    attachTexts(others());
    if (error.status === 401) askForKey(error.message);
    notice("file-text", error.status ? `${file.name}: ${error.message}` : `${file.name} ${error.message}.`);
  }
}

async function attachPictures(files) {
  for (const file of files) {
    try {
      const url = await dataUrlOf(file); // meanwhile others may be attached
      attach([...state.images, url]);
      announce(`Image ${state.images.length} is attached.`);
    } catch { notice("image", `${file.name} cannot be read as an image.`); }
  }
  at("draft").focus();
}

const canSee = () => state.models.find(({ id }) => id === state.model)?.modalities?.input?.includes("image") ?? false;

at("attach").addEventListener("click", () => at("image-files").click());
at("image-files").addEventListener("change", () => {
  attachFiles([...at("image-files").files]);
  at("image-files").value = "";
});
at("attach-file").addEventListener("click", () => at("text-files").click());
at("text-files").addEventListener("change", () => {
  attachFiles([...at("text-files").files]);
  at("text-files").value = "";
});
at("draft").addEventListener("paste", (event) => {
  const files = filesOf(event.clipboardData);
  if (files.length) { event.preventDefault(); attachFiles(files); }
});
takeDropped((files) => { if (!at("composer").hidden) attachFiles(files); });
