// Sessions, as Microsoft's client for JavaScript sees them in the stand-in broker: checks for check.mjs.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

/** The checks, over what all checks use. */
export function sessionChecks({ broker, client, send, one, counts, refused, receiverOf, EMPTY }) {
  /** Without the client's own renewing. */
  const options = { maxAutoLockRenewalDurationInMs: 0 };
  const next = (queue) => client.acceptNextSession(queue, options);
  const named = (queue, session) => client.acceptSession(queue, session, options);
  const talk = (queue, ...pairs) => send(queue, ...pairs.map(([sessionId, body]) => ({ sessionId, body })));

  return {
    async session_next_is_the_one_with_messages_and_its_order_is_kept() {
      const queue = await broker.queue("sessions lock=20000");
      await talk(queue, ["a", "1"], ["b", "x"], ["a", "2"], ["a", "3"]);
      const receiver = await next(queue);
      assert.equal(receiver.sessionId, "a");
      const left = receiver.sessionLockedUntilUtc - Date.now();
      assert.ok(left > 15_000 && left < 20_500, `${left} ms`);
      for (const body of ["1", "2", "3"]) {
        const message = await one(receiver);
        assert.deepEqual([message.body, message.sessionId, message.deliveryCount], [body, "a", 0]);
        await receiver.completeMessage(message);
      }
      const other = await next(queue);
      assert.equal(other.sessionId, "b");
      await other.completeMessage(await one(other));
      await other.close();
      await receiver.close();
      await counts(queue, EMPTY);
    },

    async session_by_its_id_and_nobody_else_meanwhile() {
      const queue = await broker.queue("sessions");
      await talk(queue, ["a", "1"], ["b", "2"]);
      const receiver = await named(queue, "b");
      assert.equal((await one(receiver)).body, "2");
      await assert.rejects(named(queue, "b"), refused("SessionCannotBeLocked"));
      await receiver.close();
      // Its link has ended: it is free, and what was not settled is back without a count.
      const again = await named(queue, "b");
      const message = await one(again);
      assert.deepEqual([message.body, message.deliveryCount], ["2", 0]);
      await again.completeMessage(message);
      await again.close();
    },

    async session_without_any_is_a_timeout() {
      const queue = await broker.queue("sessions");
      await assert.rejects(next(queue), refused("ServiceTimeout"));
    },

    async session_renewing_moves_locked_until() {
      const queue = await broker.queue("sessions lock=5000");
      await talk(queue, ["a", "1"]);
      const receiver = await next(queue);
      const message = await one(receiver);
      const before = receiver.sessionLockedUntilUtc;
      await sleep(3000);
      assert.ok((await receiver.renewSessionLock()) - before > 2000);
      await sleep(3000);
      await receiver.completeMessage(message);
      await receiver.close();
      await counts(queue, EMPTY);
    },

    async session_state_is_kept_after_its_holder() {
      const queue = await broker.queue("sessions");
      await talk(queue, ["a", "1"]);
      let receiver = await named(queue, "a");
      assert.equal(await receiver.getSessionState(), null);
      await receiver.setSessionState({ total: 7 });
      await receiver.close();
      receiver = await named(queue, "a");
      assert.deepEqual(await receiver.getSessionState(), { total: 7 });
      await receiver.close();
    },

    async session_abandoned_message_is_the_next_one() {
      const queue = await broker.queue("sessions");
      await talk(queue, ["a", "1"], ["a", "2"]);
      const receiver = await next(queue);
      await receiver.abandonMessage(await one(receiver));
      for (const [body, count] of [["1", 1], ["2", 0]]) {
        const message = await one(receiver);
        assert.deepEqual([message.body, message.deliveryCount], [body, count]);
        await receiver.completeMessage(message);
      }
      await receiver.close();
    },

    async session_lock_that_ends_is_lost() {
      const queue = await broker.queue("sessions");
      await talk(queue, ["a", "1"]);
      const receiver = await next(queue);
      const message = await one(receiver);
      assert.equal(await broker.tell(`lose-sessions ${queue}`), "1");
      await assert.rejects(receiver.renewSessionLock(), refused("SessionLockLost"));
      await assert.rejects(receiver.completeMessage(message), refused("SessionLockLost"));
      await receiver.close();
      const again = await next(queue);
      assert.equal((await one(again)).deliveryCount, 1);
      await again.close();
    },

    async session_receivers_and_others_are_refused_by_queues_of_the_other_kind() {
      const [plain, queue] = [await broker.queue(), await broker.queue("sessions")];
      await assert.rejects(next(plain), /session/i);
      const receiver = receiverOf(queue);
      await assert.rejects(receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 }), /session/i);
      await receiver.close();
    },
  };
}
