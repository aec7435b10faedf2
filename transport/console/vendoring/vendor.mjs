// Makes one module of each library, with the versions and hashes beside them: `make vendor` runs it after `npm ci`.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { buildSync } from "esbuild";

const OUT = "../static/vendor";
const BUNDLES = { "preact.js": ["preact", "htm"], "marked.js": ["marked"], "uplot.js": ["uplot"], "uplot.css": ["uplot"] };
const ENTRIES = { "uplot.css": "node_modules/uplot/dist/uPlot.min.css" };
const lock = JSON.parse(readFileSync("package-lock.json", "utf8")).packages;
const files = {};
for (const [name, packages] of Object.entries(BUNDLES)) {
  const banner = `/* ${packages.map((each) => `${each} ${lock[`node_modules/${each}`].version}, ${lock[`node_modules/${each}`].license}`).join("; ")} */`;
  buildSync({ entryPoints: [ENTRIES[name] ?? name], outfile: `${OUT}/${name}`, bundle: true, minify: true, format: "esm", target: "es2022", legalComments: "none", banner: { js: banner } });
  files[name] = {
    sha256: createHash("sha256").update(readFileSync(`${OUT}/${name}`)).digest("hex"),
    packages: Object.fromEntries(packages.map((each) => {
      const { version, integrity, license } = lock[`node_modules/${each}`];
      return [each, { version, license, integrity }];
    })),
  };
}
writeFileSync(`${OUT}/versions.json`, `${JSON.stringify(files, null, 2)}\n`);
