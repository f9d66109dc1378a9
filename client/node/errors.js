"use strict";
const { details, grpc } = require("./protocol.js");

const NOT_CONNECTED = "No connection established"; // grpc-js's own words

// A call that the server refused, or that did not reach it. index.d.ts says what the fields are.
class EbbError extends Error {
  constructor(code, message, { reason = "", field = "", metadata = {}, retryDelay = undefined, cause = undefined } = {}) {
    const retry = retryDelay === undefined ? "" : ` (retry in ${retryDelay}s)`;
    super(`${grpc.status[code]}${reason && ` ${reason}`}: ${message}${retry}`, cause && { cause });
    this.name = "EbbError";
    Object.assign(this, { code: grpc.status[code], number: code, reason, field, metadata, retryDelay });
    this.#words = message;
  }

  #words;
  known = true; // false: no server has ever answered the client

  get isAway() {
    return this.code === "UNAVAILABLE" && ["", "DRAINING"].includes(this.reason) && this.known;
  }

  get wasSent() {
    return !(this.code === "UNAVAILABLE" && this.reason === "" && this.#words.startsWith(NOT_CONNECTED));
  }
}

// A stream broke, and going on where it stopped is impossible: the message says why.
class NotResumable extends EbbError {}

function decode(packed) {
  const told = {};
  for (const { typeUrl, value } of details.lookupType("Status").decode(packed).details) {
    const kind = typeUrl.split(".").pop();
    if (!["ErrorInfo", "RetryInfo", "BadRequest"].includes(kind)) continue;
    const type = details.lookupType(kind);
    const detail = type.toObject(type.decode(value), { longs: Number, defaults: true });
    if (kind === "ErrorInfo") Object.assign(told, { reason: detail.reason, metadata: detail.metadata });
    if (kind === "RetryInfo") told.retryDelay = detail.retryDelay ? detail.retryDelay.seconds + detail.retryDelay.nanos / 1e9 : 0;
    if (kind === "BadRequest") told.field = detail.fieldViolations?.[0]?.field ?? "";
  }
  return told;
}

// All that gRPC says of a call which a server got after it had asked for another connection, as one that drains does: nobody cancelled it.
const isSentAway = ({ code, details }, packed) => code === grpc.status.CANCELLED && ["CANCELLED", "CANCEL"].includes(details) && !packed;

// The EbbError for what grpc-js gave. Where its details cannot be read, it has code and message all the same, and why as its `cause`.
function fromRpc(failure) {
  const [packed] = failure.metadata?.get("grpc-status-details-bin") ?? [];
  let told = {};
  try {
    if (packed) told = decode(packed);
  } catch (cause) {
    told = { cause };
  }
  const code = isSentAway(failure, packed) ? grpc.status.UNAVAILABLE : failure.code;
  return new EbbError(code, failure.details ?? failure.message, told);
}

module.exports = { EbbError, NotResumable, fromRpc };
