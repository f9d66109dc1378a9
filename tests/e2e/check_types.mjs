// Checks values against TypeScript types: `[{ name, type, module, value, partial }]` on stdin as JSON, a line per problem on stdout, with the
// place in the value. A field that the type does not have is a problem, and one that is missing, unless `partial` is true.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

const given = JSON.parse(fs.readFileSync(0, "utf8"));
const folder = path.dirname(fileURLToPath(import.meta.url)); // where node_modules is
// JSON has the values of enums, not their names.
const json = "type Given<T> = T extends string ? `${T}` : T extends (infer U)[] ? Given<U>[] : T extends object ? { [K in keyof T]?: Given<T[K]> } : T;\n" +
  "type Json<T> = T extends string ? `${T}` : T extends (infer U)[] ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;\n";
const files = new Map(given.map(({ type, module, value, partial }, i) => [
  path.join(folder, `given-${i}.ts`),
  `import type { ${type} } from ${JSON.stringify(module)};\n${json}export const value: ${partial ? "Given" : "Json"}<${type}> = ${JSON.stringify(value, null, 1)};\n`,
]));

const options = {
  strict: true, noEmit: true, skipLibCheck: true, target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext,
  moduleResolution: ts.ModuleResolutionKind.Bundler, types: [],
};
const host = ts.createCompilerHost(options);
const { getSourceFile, readFile, fileExists } = host;
host.fileExists = (name) => files.has(name) || fileExists(name);
host.readFile = (name) => files.get(name) ?? readFile(name);
host.getSourceFile = (name, ...more) =>
  files.has(name) ? ts.createSourceFile(name, files.get(name), ts.ScriptTarget.ES2022, true) : getSourceFile(name, ...more);

// The keys that lead to a position.
function place(file, position) {
  const keys = [];
  const visit = (node) => {
    if (position < node.getStart(file) || position >= node.getEnd()) return;
    if (ts.isPropertyAssignment(node)) keys.push(node.name.text);
    if (node.parent && ts.isArrayLiteralExpression(node.parent)) keys.push(node.parent.elements.indexOf(node));
    ts.forEachChild(node, visit);
  };
  visit(file);
  return keys.join(".");
}

const program = ts.createProgram([...files.keys()], options, host);
const names = [...files.keys()];
for (const { file, start, messageText } of ts.getPreEmitDiagnostics(program)) {
  const told = ts.flattenDiagnosticMessageText(messageText, " ").replace(/\s+/g, " ");
  console.log(`${file ? given[names.indexOf(file.fileName)].name : ""}: ${file ? place(file, start) : ""}: ${told}`);
}
