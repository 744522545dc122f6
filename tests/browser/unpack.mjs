// node unpack.mjs MODULES FOLDER: unpack the browser of @sparticuz/chromium, its libraries and fonts.
import { copyFileSync, createReadStream, createWriteStream } from "node:fs";
import { createRequire } from "node:module";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";

const [modules, folder] = process.argv.slice(2);
const { extract } = createRequire(`${modules}/`)("tar-fs");
const decompress = (name, target) =>
  pipeline(createReadStream(`${modules}/@sparticuz/chromium/bin/${name}.br`), createBrotliDecompress(), target);

for (const name of ["al2023", "fonts", "swiftshader"]) await decompress(`${name}.tar`, extract(folder));
await decompress("chromium", createWriteStream(`${folder}/chromium`, { mode: 0o755 }));
const mono = "DejaVuSansMono.ttf";
copyFileSync(`${modules}/dejavu-fonts-ttf/ttf/${mono}`, `${folder}/fonts/${mono}`);
