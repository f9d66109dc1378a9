// Compares what index.d.ts says of the Node package with what index.js is when it runs: a line on stdout for each name, method, or number of
// arguments that must be given, that one of them has and the other lacks.  node declared.mjs FOLDER-OF-THE-PACKAGE [index.d.ts]
import { createRequire } from "node:module";
import path from "node:path";
import ts from "typescript";

const [folder, types = path.join(folder, "index.d.ts")] = process.argv.slice(2);
const ebb = createRequire(import.meta.url)(path.resolve(folder));

// One object of each class: what is no method or getter is there from its constructor on.
const client = new ebb.Client("127.0.0.1:1");
const session = client.session("s");
const objects = [client, session, session.decode(), new ebb.EbbError(14, "away", { cause: new Error() }), new ebb.NotResumable(14, "away")];
client.close();

const told = new Set();
function compare(place, declared, real) {
  for (const [name, count] of declared) {
    if (!real.has(name)) told.add(`${place}${name}: index.js has none`);
    else if (count !== undefined && count !== real.get(name)) told.add(`${place}${name}: takes ${real.get(name)}, index.d.ts says ${count}`);
  }
  for (const name of real.keys()) if (!declared.has(name)) told.add(`${place}${name}: index.d.ts has none`);
}

const needed = (parameters) => parameters.filter((each) => !each.questionToken && !each.dotDotDotToken).length;
const countOf = (value) => (typeof value === "function" ? value.length : undefined);
const isPrivate = (node) => node.modifiers?.some((each) => each.kind === ts.SyntaxKind.PrivateKeyword) ?? false;

// A class's members by name, with the number of arguments of those that are called; and the same of what it is.
function declaredMembers(node, file) {
  const nameOf = (each) => (each.name ? each.name.getText(file).replace(/^\[(.*)\]$/, "$1") : "constructor");
  return new Map(node.members.map((each) => [nameOf(each), each.parameters && !isPrivate(each) ? needed(each.parameters) : undefined]));
}

function realMembers(value, object, declared) {
  const methods = Reflect.ownKeys(value.prototype).filter((key) => key !== "constructor")
    .map((key) => [key.description ?? key, countOf(Object.getOwnPropertyDescriptor(value.prototype, key).value)]);
  const fields = [...declared.keys()].filter((name) => Object.hasOwn(object, name)).map((name) => [name, undefined]);
  const isInherited = Object.values(ebb).includes(Object.getPrototypeOf(value));
  return new Map([...methods, ...fields, ...(isInherited ? [] : [["constructor", value.length]])]);
}

const file = ts.createSourceFile(types, ts.sys.readFile(types), ts.ScriptTarget.ES2022, true);
const exported = new Map();
for (const node of file.statements) {
  if (ts.isExportDeclaration(node)) exported.set(node.exportClause.name.text, undefined);
  if (ts.isFunctionDeclaration(node)) exported.set(node.name.text, needed(node.parameters));
  if (!ts.isClassDeclaration(node)) continue;
  const name = node.name.text;
  exported.set(name, undefined);
  const object = objects.find((each) => each.constructor === ebb[name]);
  if (!object) continue;
  const declared = declaredMembers(node, file);
  compare(`${name}.`, declared, realMembers(ebb[name], object, declared));
}
compare("", exported, new Map(Object.entries(ebb).map(([name, value]) => [name, countOf(value)])));
for (const line of told) console.log(line);
