// Microsoft's client for JavaScript against the stand-in broker: does it accept the broker, and does
// it report faults? Started by run.sh, which installs the client and gives the broker's program:
//
//     INSTALLED=DIR/ check.mjs plain|tls BROKER [CERT KEY AUTHORITY OTHER_AUTHORITY]
//
// With `tls` the authority is trusted by NODE_EXTRA_CA_CERTS. Prints one line a check, `ok NAME` or
// `FAILED NAME: why`, and ends with 1 if one failed.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { sessionChecks } from "./sessions.mjs";

const require = createRequire(process.env.INSTALLED);
const { ServiceBusClient } = require("@azure/service-bus");
const { version } = require("@azure/service-bus/package.json");

const EMPTY = "ready=0 locked=0 deferred=0";

/** The program, driven over its standard input; it ends with this process. */
class Broker {
  constructor(program, ...options) {
    this.process = spawn(program, options, { stdio: ["pipe", "pipe", "inherit"] });
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
  }

  async start() {
    this.connectionString = (await this.lines.next()).value;
    assert.match(this.connectionString ?? "", /^Endpoint=/, "the broker did not start");
    return this;
  }

  async tell(command) {
    this.process.stdin.write(`${command}\n`);
    const { value } = await this.lines.next();
    assert.match(value ?? "the broker is gone", /^ok/, command);
    return value.slice(2).trim();
  }

  /** A new queue for each check: none can see another's messages. */
  async queue(options = "") {
    const name = `q-${randomUUID().slice(0, 8)}`;
    await this.tell(`queue ${name} ${options}`);
    return name;
  }
}

const [mode, program, cert, key] = process.argv.slice(2);
const broker = await new Broker(
  program,
  ...(mode === "tls" ? ["--tls-cert", cert, "--tls-key", key] : []),
).start();
const retryOptions = { maxRetries: 1, retryDelayInMs: 200, timeoutInMs: 4000 };
const client = new ServiceBusClient(broker.connectionString, { retryOptions });

async function send(queue, ...messages) {
  const sender = client.createSender(queue);
  for (const message of messages) await sender.sendMessages({ messageId: randomUUID(), ...message });
  await sender.close();
}

/** Without the client's own renewing: the checks want to see locks end. */
const receiverOf = (queue, options) =>
  client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0, ...options });

async function one(receiver) {
  const messages = await receiver.receiveMessages(1, { maxWaitTimeInMs: 10_000 });
  assert.equal(messages.length, 1);
  return messages[0];
}

async function counts(queue, expected) {
  assert.equal(await broker.tell(`counts ${queue}`), expected);
}

/** Sends one message and receives it; the receiver is closed behind the check. */
async function with_one(options, check) {
  const queue = await broker.queue(options);
  await send(queue, { body: "one" });
  const receiver = receiverOf(queue);
  try {
    await check({ queue, receiver, message: await one(receiver) });
  } finally {
    await receiver.close();
  }
}

const refused = (code) => (failure) => {
  // Where it has tried several times it reports all of its tries.
  const error = failure.errors?.at(-1) ?? failure;
  assert.equal(error.code, code, `${error.code} instead of ${code}: ${error.name} ${error.message}`);
  return true;
};

const checks = {
  async send_and_receive_bodies_byte_for_byte() {
    const queue = await broker.queue();
    const bodies = ["text", "", "\0\xff binary", "x".repeat(300_000)].map((it) => Buffer.from(it, "latin1"));
    await send(queue, ...bodies.map((body) => ({ body, contentType: "a/b", applicationProperties: { n: 7 } })));
    const receiver = receiverOf(queue);
    for (const body of bodies) {
      const message = await one(receiver);
      assert.ok(Buffer.from(message.body).equals(body));
      assert.equal(message.contentType, "a/b");
      assert.equal(message.applicationProperties.n, 7);
      assert.equal(message.deliveryCount, 0);
      await receiver.completeMessage(message);
    }
    await receiver.close();
    await counts(queue, EMPTY);
  },

  async a_batch() {
    const queue = await broker.queue();
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    for (let n = 0; n < 20; n += 1) assert.ok(batch.tryAddMessage({ body: `message ${n}` }));
    await sender.sendMessages(batch);
    const receiver = receiverOf(queue, { receiveMode: "receiveAndDelete" });
    const seen = [];
    for (let round = 0; round < 20 && seen.length < 20; round += 1) {
      seen.push(...(await receiver.receiveMessages(20, { maxWaitTimeInMs: 5000 })));
    }
    assert.deepEqual(seen.map((it) => it.body), Array.from({ length: 20 }, (_, n) => `message ${n}`));
    await receiver.close();
    await counts(queue, EMPTY);
  },

  peek_lock_and_complete: () =>
    with_one("lock=20000", async ({ queue, receiver, message }) => {
      const left = message.lockedUntilUtc - Date.now();
      assert.ok(left > 15_000 && left < 20_500, `${left} ms`);
      await counts(queue, "ready=0 locked=1 deferred=0");
      await receiver.completeMessage(message);
      await counts(queue, EMPTY);
    }),

  renewing_moves_locked_until: () =>
    with_one("lock=5000", async ({ queue, receiver, message }) => {
      const before = message.lockedUntilUtc;
      await sleep(3000);
      assert.ok((await receiver.renewMessageLock(message)) - before > 2000);
      await sleep(3000);
      await receiver.completeMessage(message);
      await counts(queue, EMPTY);
    }),

  abandoning_counts: () =>
    with_one("", async ({ receiver, message }) => {
      await receiver.abandonMessage(message);
      const again = await one(receiver);
      assert.equal(again.deliveryCount, 1);
      await receiver.completeMessage(again);
    }),

  dead_letter_with_reason_and_text: () =>
    with_one("", async ({ queue, receiver, message }) => {
      await receiver.deadLetterMessage(message, { deadLetterReason: "Rejected", deadLetterErrorDescription: "exit 65" });
      const dead = receiverOf(queue, { subQueueType: "deadLetter" });
      const letter = await one(dead);
      assert.equal(letter.deadLetterReason, "Rejected");
      assert.equal(letter.deadLetterErrorDescription, "exit 65");
      await dead.completeMessage(letter);
      await dead.close();
    }),

  deferred_comes_by_its_number: () =>
    with_one("", async ({ queue, receiver, message }) => {
      await receiver.deferMessage(message);
      await counts(queue, "ready=0 locked=0 deferred=1");
      const [again] = await receiver.receiveDeferredMessages(message.sequenceNumber);
      await receiver.completeMessage(again);
      await counts(queue, EMPTY);
    }),

  async peeking_locks_nothing() {
    const queue = await broker.queue();
    await send(queue, { body: "one" }, { body: "two" });
    const receiver = receiverOf(queue);
    assert.deepEqual((await receiver.peekMessages(10)).map((it) => it.body), ["one", "two"]);
    await receiver.close();
    await counts(queue, "ready=2 locked=0 deferred=0");
  },

  completing_too_late_is_refused_by_the_broker: () =>
    with_one("lock=1000", async ({ queue, receiver, message }) => {
      await sleep(1500);
      await assert.rejects(receiver.completeMessage(message), refused("MessageLockLost"));
      await counts(queue, "ready=1 locked=0 deferred=0");
    }),

  an_expired_lock_redelivers: () =>
    with_one("lock=1000", async ({ receiver }) => {
      const again = await one(receiver);
      assert.equal(again.deliveryCount, 1);
      await receiver.completeMessage(again);
    }),

  renewing_a_lost_lock_is_refused: () =>
    with_one("", async ({ queue, receiver, message }) => {
      assert.equal(await broker.tell(`lose-locks ${queue}`), "1");
      await assert.rejects(receiver.renewMessageLock(message), refused("MessageLockLost"));
    }),

  async an_empty_queue_gives_nothing() {
    const receiver = receiverOf(await broker.queue());
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 }), []);
    await receiver.close();
  },

  async an_unknown_queue_is_not_found() {
    const receiver = receiverOf("no-such-queue");
    await assert.rejects(receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 }), refused("MessagingEntityNotFound"));
    await receiver.close();
  },

  async a_disabled_queue_says_so() {
    const receiver = receiverOf(await broker.queue("disabled"));
    await assert.rejects(receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 }), refused("MessagingEntityDisabled"));
    await receiver.close();
  },

  fault_settling_refused: () =>
    with_one("", async ({ queue, receiver, message }) => {
      await broker.tell(`fault settle lock-lost at=${queue} times=9`);
      await assert.rejects(receiver.completeMessage(message), refused("MessageLockLost"));
      await broker.tell("clear");
    }),

  fault_renewal_answered_late_is_not_taken_for_the_next: () =>
    with_one("", async ({ queue, receiver, message }) => {
      await broker.tell(`fault renew-lock shift at=${queue}`);
      await broker.tell(`fault renew-lock lock-lost at=${queue} times=9`);
      const first = receiver.renewMessageLock(message).then(() => "renewed", (error) => error.code);
      await sleep(500);
      await assert.rejects(receiver.renewMessageLock(message), refused("MessageLockLost"));
      assert.equal(await first, "renewed");
      await broker.tell("clear");
    }),

  async fault_connection_cut_between_two_messages() {
    const queue = await broker.queue();
    await send(queue, { body: "one" }, { body: "two" });
    const receiver = receiverOf(queue);
    await receiver.completeMessage(await one(receiver));
    await broker.tell("cut");
    await sleep(500);
    await receiver.completeMessage(await one(receiver));
    await receiver.close();
    await counts(queue, EMPTY);
  },

  async fault_server_busy() {
    const queue = await broker.queue();
    await broker.tell(`fault send busy at=${queue} times=9`);
    await assert.rejects(send(queue, { body: "one" }), refused("ServiceBusy"));
    await broker.tell("clear");
  },
};

Object.assign(checks, sessionChecks({ broker, client, send, one, counts, refused, receiverOf, EMPTY }));

let failed = 0;
console.log(`version @azure/service-bus ${version}`);
for (const [name, check] of Object.entries(checks)) {
  const began = Date.now();
  try {
    await check();
    console.log(`ok ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}: ${error.name}: ${String(error.message).slice(0, 300)}`);
  }
}
await client.close();
console.log("done");
broker.process.stdin.end();
process.exit(failed === 0 ? 0 : 1);
