// The panels of the page, in order. One is { id, title, wide, mount(body) }: mount fills its part of the page, and keeps to what
// api.js and store.js offer. What it calls has a line in kMethods of server/console.cc.

import { cache } from "./cache.js";
import { compare } from "./compare.js";
import { evictions } from "./evictions.js";
import { experiments } from "./experiments.js";
import { load } from "./load.js";
import { playground } from "./playground.js";
import { sessions } from "./sessions.js";

export const panels = [playground, cache, sessions, evictions, load, compare, experiments];
