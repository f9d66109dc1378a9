"use strict";
// ebb.v1 as grpc-js takes it, made from the .proto files when the module is loaded: of the package, or of the clone that it is in.

const fs = require("node:fs");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const protobuf = require("protobufjs");

const folder = [path.join(__dirname, "proto"), path.join(__dirname, "..", "..", "proto")].find((each) => fs.existsSync(each));
const root = new protobuf.Root();
root.resolvePath = (_, target) => (target.startsWith("google/") ? target : path.join(folder, target));
root.loadSync(["session", "inference", "eviction", "admin"].map((name) => `ebb/v1/${name}.proto`));
root.resolveAll();

const SERVICES = ["SessionService", "InferenceService", "EvictionService", "AdminService"];
const OUT = { longs: Number, enums: String, defaults: true, arrays: true };

// Method name to what grpc-js needs to call it; no two services have a method of one name.
const methods = {};
for (const name of SERVICES) {
  for (const method of root.lookupService(`ebb.v1.${name}`).methodsArray) {
    const { resolvedRequestType: request, resolvedResponseType: response } = method.resolve();
    methods[method.name] = {
      path: `/ebb.v1.${name}/${method.name}`,
      serialize: (message) => Buffer.from(request.encode(request.fromObject(message)).finish()),
      deserialize: (bytes) => response.toObject(response.decode(bytes), OUT),
    };
  }
}

// Of google.rpc, what travels in grpc-status-details-bin and is read here.
const details = protobuf.Root.fromJSON({
  nested: {
    Any: { fields: { typeUrl: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
    Duration: { fields: { seconds: { type: "int64", id: 1 }, nanos: { type: "int32", id: 2 } } },
    Status: { fields: { details: { rule: "repeated", type: "Any", id: 3 } } },
    ErrorInfo: { fields: { reason: { type: "string", id: 1 }, metadata: { keyType: "string", type: "string", id: 3 } } },
    RetryInfo: { fields: { retryDelay: { type: "Duration", id: 1 } } },
    FieldViolation: { fields: { field: { type: "string", id: 1 } } },
    BadRequest: { fields: { fieldViolations: { rule: "repeated", type: "FieldViolation", id: 1 } } },
  },
});

const fieldsOf = (type) => root.lookupType(`ebb.v1.${type}`).fields;

module.exports = { details, fieldsOf, grpc, methods };
