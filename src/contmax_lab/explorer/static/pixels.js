// Images as the server sends them: rows of red, green and blue, in base 64.

/** The image on a canvas of its size. */
export function paint(canvas, { width, height, rgb }) {
  canvas.width = width;
  canvas.height = height;
  const bytes = Uint8Array.from(atob(rgb), letter => letter.charCodeAt(0)), pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  for (let i = 0; i < width * height; i++) image.data.set([bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2], 255], 4 * i);
  pen.putImageData(image, 0, 0);
  return canvas;
}
