"""Sessions, as Microsoft's client for Python sees them in the stand-in broker. The checks are methods, as in
check.py, which takes them in."""

import datetime
import time

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)


def equal(seen, expected):
    if seen != expected:
        raise AssertionError(f"{str(seen)[:200]!r}, expected {str(expected)[:200]!r}")


def raises(kinds, action):
    try:
        action()
    except kinds as error:
        return error
    raise AssertionError(f"no error, expected {kinds}")


class SessionChecks:
    """Of a queue that requires sessions."""

    def sessions(self, queue, session=NEXT_AVAILABLE_SESSION, **options):
        return self.client.get_queue_receiver(queue, session_id=session, **options)

    def fill(self, queue, *pairs):
        with self.client.get_queue_sender(queue) as sender:
            for session, body in pairs:
                sender.send_messages(ServiceBusMessage(body, session_id=session))

    def session_next_is_the_one_with_messages_and_its_order_is_kept(self):
        queue = self.broker.queue("sessions lock=20000")
        self.fill(queue, ("a", "1"), ("b", "x"), ("a", "2"), ("a", "3"))
        with self.sessions(queue) as receiver:
            equal(receiver.session.session_id, "a")
            left = receiver.session.locked_until_utc - datetime.datetime.now(datetime.timezone.utc)
            equal(15 < left.total_seconds() <= 20.5, True)
            for body in "123":
                message = self.one(receiver)
                equal((str(message), message.session_id, message.delivery_count), (body, "a", 0))
                receiver.complete_message(message)
            with self.sessions(queue) as other:
                equal(other.session.session_id, "b")
                other.complete_message(self.one(other))
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def session_by_its_id_and_nobody_else_meanwhile(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"), ("b", "2"))
        with self.sessions(queue, "b") as receiver:
            equal(receiver.session.session_id, "b")
            equal(str(self.one(receiver)), "2")

            def again():
                with self.sessions(queue, "b") as other:
                    other.receive_messages(max_wait_time=1)

            raises(SessionCannotBeLockedError, again)
        # Its link has ended: it is free, and what was not settled is back without a count.
        with self.sessions(queue, "b") as receiver:
            message = self.one(receiver)
            equal((str(message), message.delivery_count), ("2", 0))
            receiver.complete_message(message)

    def session_without_any_is_a_timeout(self):
        queue = self.broker.queue("sessions")

        def accept():
            with self.sessions(queue, max_wait_time=2) as receiver:
                receiver.receive_messages(max_wait_time=2)

        began = time.monotonic()
        raises(OperationTimeoutError, accept)
        equal(time.monotonic() - began < 20, True)

    def session_renewing_moves_locked_until(self):
        queue = self.broker.queue("sessions lock=5000")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue) as receiver:
            message = self.one(receiver)
            before = receiver.session.locked_until_utc
            time.sleep(3)
            renewed = receiver.session.renew_lock()
            equal((renewed - before).total_seconds() > 2, True)
            time.sleep(3)
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def session_state_is_kept_after_its_holder(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue, "a") as receiver:
            equal(receiver.session.get_state(), None)
            receiver.session.set_state(b"\x00\xff one")
            equal(receiver.session.get_state(), b"\x00\xff one")
        with self.sessions(queue, "a") as receiver:
            equal(receiver.session.get_state(), b"\x00\xff one")
            receiver.session.set_state(None)
            equal(receiver.session.get_state(), None)

    def session_abandoned_message_is_the_next_one(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"), ("a", "2"))
        with self.sessions(queue) as receiver:
            receiver.abandon_message(self.one(receiver))
            for body, count in (("1", 1), ("2", 0)):
                message = self.one(receiver)
                equal((str(message), message.delivery_count), (body, count))
                receiver.complete_message(message)

    def session_dead_letters_go_to_the_dead_letter_queue(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"), ("a", "2"))
        with self.sessions(queue) as receiver:
            receiver.dead_letter_message(self.one(receiver), reason="Rejected")
            equal(str(self.one(receiver)), "2")
        with self.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            message = self.one(receiver)
            equal((str(message), message.dead_letter_reason, message.session_id), ("1", "Rejected", "a"))
            receiver.complete_message(message)

    def session_lock_that_ends_is_lost(self):
        queue = self.broker.queue("sessions lock=30000")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue) as receiver:
            message = self.one(receiver)
            equal(self.broker(f"lose-sessions {queue}"), "1")
            raises(SessionLockLostError, receiver.session.renew_lock)
            raises(SessionLockLostError, lambda: receiver.complete_message(message))
        with self.sessions(queue) as receiver:
            message = self.one(receiver)
            equal(message.delivery_count, 1)
            receiver.complete_message(message)

    def session_lock_that_is_not_renewed_ends_by_itself(self):
        queue = self.broker.queue("sessions lock=1000")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue) as receiver:
            self.one(receiver)
            time.sleep(1.5)
            with self.sessions(queue) as other:
                message = self.one(other)
                equal((other.session.session_id, message.delivery_count), ("a", 1))
                other.complete_message(message)

    def session_receiver_is_refused_by_a_queue_without_any(self):
        queue = self.broker.queue()

        def accept():
            with self.sessions(queue, max_wait_time=2) as receiver:
                receiver.receive_messages(max_wait_time=2)

        error = raises(ServiceBusError, accept)
        equal("session" in str(error).lower(), True)

    def session_message_without_one_is_refused(self):
        queue = self.broker.queue("sessions")
        raises((ServiceBusError, ValueError), lambda: self.send(queue, "one"))
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def fault_session_renewal_refused(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue) as receiver:
            self.one(receiver)
            self.broker(f"fault renew-session refuse=com.microsoft:session-lock-lost at={queue} times=9")
            raises((SessionLockLostError, ServiceBusError), receiver.session.renew_lock)
        self.broker("clear")

    def fault_session_link_detached(self):
        queue = self.broker.queue("sessions")
        self.fill(queue, ("a", "1"))
        with self.sessions(queue) as receiver:
            message = self.one(receiver)
            equal(self.broker(f"detach-sessions {queue}"), "1")
            raises(ServiceBusError, lambda: receiver.complete_message(message))
        equal(self.broker(f"counts {queue}"), "ready=1 locked=0 deferred=0")
