"use strict";
// Which server has which session, where several share them. As client/python/ebb/homes.py, which says more.

const SESSIONS_MAX = 10000; // that are remembered
const HOST = /^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$/; // of an address that a pattern may match: no scheme, no path

function split(address) {
  const colon = address.lastIndexOf(":");
  return [address.slice(0, Math.max(colon, 0)), address.slice(colon + 1)];
}

// The session that a request is about; empty: none, or one that it opens.
function sessionOf(request) {
  const name = request.session || request.name || "";
  return name.startsWith("sessions/") ? name : "";
}

class Homes {
  #patterns = [];
  #ring;
  #at = new Map(); // by session; not those at `own`
  #silent = new Set(); // who did not answer the last time
  #known = false; // anybody has ever answered

  constructor(own, follow) {
    this.own = own;
    this.#ring = [own];
    this.follows = follow.length > 0;
    for (const each of follow) {
      const [host, port] = split(each);
      if (!host || !/^[0-9]+$/.test(port) || host.replace(/^\*\./, "").includes("*")) {
        throw new TypeError(`follow: ${each} is neither host:port nor *.domain:port`);
      }
      const servers = host.startsWith("*.") ? this.#patterns : this.#ring;
      if (!servers.includes(each)) servers.push(each); // once, so that it has one successor
    }
  }

  mayCall(address) {
    const [host, port] = split(address);
    if (this.#ring.includes(address)) return true;
    return HOST.test(host) && this.#patterns.map(split).some(([domain, of]) => port === of && host.endsWith(domain.slice(1)));
  }

  // Whom to ask.
  of(request) {
    return this.#at.get(sessionOf(request)) ?? this.own;
  }

  // It has answered.
  heard(address) {
    this.#known = true;
    this.#silent.delete(address);
  }

  // Where to ask next, `address` having refused so; an error that says where may be followed at once.
  heed(request, address, error) {
    const session = sessionOf(request);
    if (error.reason) this.heard(address);
    error.known = this.#known;
    if (!this.follows || !session) return error;
    const moved = error.reason === "SESSION_MOVED" ? error.metadata.endpoint : undefined;
    if (moved && moved !== address && this.mayCall(moved)) {
      this.#put(session, moved);
      if (!this.#silent.has(moved)) error.retryDelay = 0;
    } else if (!error.reason && error.code === "UNAVAILABLE") {
      this.#silent.add(address);
      const place = this.#ring.indexOf(address); // -1: one that a pattern allowed; then `own`
      this.#put(session, this.#ring[(place + 1) % this.#ring.length]);
    }
    return error;
  }

  #put(session, address) {
    this.#at.delete(session);
    if (address === this.own) return;
    while (this.#at.size >= SESSIONS_MAX) this.#at.delete(this.#at.keys().next().value);
    this.#at.set(session, address);
  }
}

module.exports = { Homes };
