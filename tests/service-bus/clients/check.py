"""Microsoft's client for Python against the stand-in broker: does it accept the broker, and does it
report every fault? Started by run.sh, which makes the environment and gives the broker's program:

    check.py plain|tls BROKER [CERT KEY AUTHORITY OTHER_AUTHORITY]

Prints one line a check, `ok NAME` or `FAILED NAME: why`, and ends with 1 if one failed.
"""

import datetime
import importlib.metadata
import logging
import subprocess
import sys
import time
import uuid

from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from sessions import SessionChecks

logging.getLogger("azure").setLevel(logging.CRITICAL)
BODIES = [b"text", b"", b"\x00\xff\x80 binary", b"x" * 300_000]


class Broker:
    """The program, driven over its standard input; it ends with this process."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen(
            [program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.connection_string = self.process.stdout.readline().strip()
        if not self.connection_string.startswith("Endpoint="):
            sys.exit("the broker did not start")

    def __call__(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer.startswith("ok"):
            raise RuntimeError(f"{command}: {answer or 'the broker is gone'}")
        return answer[2:].strip()

    def queue(self, options=""):
        """A new queue for each check: none can see another's messages."""
        name = f"q-{uuid.uuid4().hex[:8]}"
        self(f"queue {name} {options}")
        return name


def raises(kinds, action):
    """The error that the action must end with."""
    try:
        action()
    except kinds as error:
        return error
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} instead of {kinds}: {error}") from error
    raise AssertionError(f"no error, expected {kinds}")


def equal(seen, expected):
    if seen != expected:
        raise AssertionError(f"{str(seen)[:200]!r}, expected {str(expected)[:200]!r}")


class Bench:
    """What every check uses."""

    def __init__(self, broker, **options):
        self.broker = broker
        self.client = ServiceBusClient.from_connection_string(
            broker.connection_string, retry_total=2, retry_backoff_factor=0.2, **options
        )

    def send(self, queue, *bodies, **properties):
        with self.client.get_queue_sender(queue) as sender:
            for body in bodies:
                sender.send_messages(ServiceBusMessage(body, **properties))

    def one(self, receiver, wait=10):
        messages = receiver.receive_messages(max_message_count=1, max_wait_time=wait)
        equal(len(messages), 1)
        return messages[0]

    def receiver(self, queue, **options):
        return self.client.get_queue_receiver(queue, **options)


class Checks(Bench, SessionChecks):
    """Each method is a check; the faults are at the end."""

    def send_and_receive_bodies_byte_for_byte(self):
        queue = self.broker.queue()
        properties = {"n": 7, "s": "text", "b": True, "u": uuid.uuid4()}
        self.send(queue, *BODIES, content_type="a/b", application_properties=properties)
        with self.receiver(queue) as receiver:
            for body in BODIES:
                message = self.one(receiver)
                equal(b"".join(message.body), body)
                equal(message.content_type, "a/b")
                equal(message.application_properties[b"n"], 7)
                equal(message.delivery_count, 0)
                receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def a_batch(self):
        queue = self.broker.queue()
        with self.client.get_queue_sender(queue) as sender:
            batch = sender.create_message_batch()
            for number in range(20):
                batch.add_message(ServiceBusMessage(f"message {number}"))
            sender.send_messages(batch)
        with self.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
            seen = []
            while len(seen) < 20:
                seen += receiver.receive_messages(max_message_count=20, max_wait_time=10) or [None]
            equal([str(message) for message in seen], [f"message {n}" for n in range(20)])
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def peek_lock_and_complete(self):
        queue = self.broker.queue("lock=20000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            left = message.locked_until_utc - datetime.datetime.now(datetime.timezone.utc)
            equal(15 < left.total_seconds() <= 20.5, True)
            equal(self.broker(f"counts {queue}"), "ready=0 locked=1 deferred=0")
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def renewing_moves_locked_until(self):
        queue = self.broker.queue("lock=5000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            before = message.locked_until_utc
            time.sleep(3)
            renewed = receiver.renew_message_lock(message)
            equal((renewed - before).total_seconds() > 2, True)
            time.sleep(3)
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def abandoning_counts(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            receiver.abandon_message(self.one(receiver))
            message = self.one(receiver)
            equal(message.delivery_count, 1)
            receiver.complete_message(message)

    def max_delivery_count_dead_letters(self):
        queue = self.broker.queue("max=2")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            receiver.abandon_message(self.one(receiver))
            receiver.abandon_message(self.one(receiver))
        with self.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            message = self.one(receiver)
            equal(message.dead_letter_reason, "MaxDeliveryCountExceeded")
            receiver.complete_message(message)

    def dead_letter_with_reason_and_text(self):
        queue = self.broker.queue()
        self.send(queue, BODIES[2])
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            receiver.dead_letter_message(message, reason="Rejected", error_description="exit 65")
        with self.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            message = self.one(receiver)
            equal(message.dead_letter_reason, "Rejected")
            equal(message.dead_letter_error_description, "exit 65")
            equal(b"".join(message.body), BODIES[2])
            receiver.renew_message_lock(message)
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}/$DeadLetterQueue"), "ready=0 locked=0 deferred=0")

    def deferred_comes_by_its_number(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            receiver.defer_message(message)
            equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=1")
            again = receiver.receive_deferred_messages(message.sequence_number)
            equal(str(again[0]), "one")
            receiver.complete_message(again[0])
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def peeking_locks_nothing(self):
        queue = self.broker.queue()
        self.send(queue, "one", "two")
        with self.receiver(queue) as receiver:
            equal([str(it) for it in receiver.peek_messages(10)], ["one", "two"])
        equal(self.broker(f"counts {queue}"), "ready=2 locked=0 deferred=0")

    def completing_too_late_changes_nothing(self):
        queue = self.broker.queue("lock=1000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            time.sleep(1.5)
            raises(MessageLockLostError, lambda: receiver.complete_message(message))
        equal(self.broker(f"counts {queue}"), "ready=1 locked=0 deferred=0")

    def an_expired_lock_redelivers(self):
        queue = self.broker.queue("lock=1000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            self.one(receiver)
            message = self.one(receiver)
            equal(message.delivery_count, 1)
            receiver.complete_message(message)

    def renewing_a_lost_lock_is_refused(self):
        queue = self.broker.queue("lock=30000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            equal(self.broker(f"lose-locks {queue}"), "1")
            raises(MessageLockLostError, lambda: receiver.renew_message_lock(message))

    def the_renewer_keeps_a_lock_of_5_s_for_12_s(self):
        queue = self.broker.queue("lock=5000")
        self.send(queue, "one")
        with self.receiver(queue) as receiver, AutoLockRenewer() as renewer:
            message = self.one(receiver)
            renewer.register(receiver, message, max_lock_renewal_duration=60)
            time.sleep(12)
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def an_empty_queue_gives_nothing(self):
        with self.receiver(self.broker.queue()) as receiver:
            equal(receiver.receive_messages(max_wait_time=2), [])

    def an_unknown_queue_is_not_found(self):
        def receive():
            with self.receiver("no-such-queue") as receiver:
                receiver.receive_messages(max_wait_time=2)

        raises(MessagingEntityNotFoundError, receive)

    def a_subscription_gets_what_its_topic_is_sent(self):
        self.broker("queue orders/Subscriptions/mail")
        with self.client.get_topic_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        with self.client.get_subscription_receiver("orders", "mail") as receiver:
            message = self.one(receiver)
            equal(str(message), "one")
            receiver.renew_message_lock(message)
            receiver.complete_message(message)

    def a_queue_of_sessions_refuses_a_plain_receiver(self):
        queue = self.broker.queue("sessions")

        def receive():
            with self.receiver(queue) as receiver:
                receiver.receive_messages(max_wait_time=2)

        error = raises(ServiceBusError, receive)
        equal("sessions" in str(error), True)

    def a_disabled_queue_says_so(self):
        queue = self.broker.queue("disabled")

        def receive():
            with self.receiver(queue) as receiver:
                receiver.receive_messages(max_wait_time=2)

        raises(MessagingEntityDisabledError, receive)

    # The faults.

    def fault_settling_refused(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            self.broker(f"fault settle lock-lost at={queue}")
            self.broker(f"fault update-disposition lock-lost at={queue}")
            raises(MessageLockLostError, lambda: receiver.complete_message(message))

    def fault_renewal_refused(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            self.broker(f"fault renew-lock lock-lost at={queue} times=9")
            raises(MessageLockLostError, lambda: receiver.renew_message_lock(message))
        self.broker("clear")

    def fault_renewal_not_answered(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            self.broker(f"fault renew-lock lose at={queue} times=9")
            raises(OperationTimeoutError, lambda: receiver.renew_message_lock(message, timeout=3))
        self.broker("clear")

    def fault_renewal_answered_late_is_not_taken_for_the_next(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            self.broker(f"fault renew-lock delay=2500 at={queue}")
            self.broker(f"fault renew-lock lock-lost at={queue} times=9")
            raises(
                (OperationTimeoutError, MessageLockLostError),
                lambda: receiver.renew_message_lock(message, timeout=2),
            )
            raises(MessageLockLostError, lambda: receiver.renew_message_lock(message, timeout=5))
        self.broker("clear")

    def fault_connection_cut_in_a_renewal(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        with self.receiver(queue) as receiver:
            message = self.one(receiver)
            self.broker(f"fault renew-lock cut at={queue}")
            receiver.renew_message_lock(message)
            receiver.complete_message(message)
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

    def fault_token_refused(self):
        queue = self.broker.queue()
        self.broker(f"fault put-token unauthorized at={queue} times=9")
        raises(ServiceBusAuthenticationError, lambda: self.send(queue, "one"))
        self.broker("clear")

    def fault_server_busy(self):
        queue = self.broker.queue()
        self.broker(f"fault send busy at={queue} times=9")
        raises(ServiceBusServerBusyError, lambda: self.send(queue, "one"))
        self.broker("clear")

    def fault_link_detached_behind_a_delivery(self):
        queue = self.broker.queue()
        self.send(queue, "one")
        self.broker(f"fault deliver detach=amqp:link:detach-forced at={queue}")
        with self.receiver(queue) as receiver:
            seen = receiver.receive_messages(max_wait_time=5)
            # The client may show the message or not; the broker has it locked and nobody lost it.
            if seen:
                receiver.complete_message(seen[0])
                expected = "ready=0 locked=0 deferred=0"
            else:
                expected = "ready=0 locked=1 deferred=0"
        equal(self.broker(f"counts {queue}"), expected)

    def fault_all_connections_cut_between_two_messages(self):
        queue = self.broker.queue()
        self.send(queue, "one", "two")
        with self.receiver(queue) as receiver:
            receiver.complete_message(self.one(receiver))
            self.broker("cut")
            receiver.complete_message(self.one(receiver))
        equal(self.broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")


def main():
    mode, program, *files = sys.argv[1:]
    failed = 0

    def check(name, action):
        nonlocal failed
        began = time.monotonic()
        try:
            action()
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)

    print(f"version azure-servicebus {importlib.metadata.version('azure-servicebus')}", flush=True)
    if mode == "tls":
        cert, key, known, other = files
        # Over TLS this client takes no other port from a connection string than its own.
        broker = Broker(program, "--port", "5671", "--tls-cert", cert, "--tls-key", key)
        checks = Checks(broker, connection_verify=known)

        def unknown_authority():
            queue = broker.queue()
            stranger = Checks(broker, connection_verify=other)
            error = raises(ServiceBusConnectionError, lambda: stranger.send(queue, "one"))
            equal("certificate verify failed" in str(error).lower(), True)
            equal(broker(f"counts {queue}"), "ready=0 locked=0 deferred=0")

        check("refuses_an_unknown_authority", unknown_authority)
    else:
        broker = Broker(program)
        checks = Checks(broker)

        def wrong_key():
            text = broker.connection_string.replace("AccessKey=", "AccessKey=wrong")
            client = ServiceBusClient.from_connection_string(text, retry_total=0)
            queue = broker.queue()

            def send():
                with client.get_queue_sender(queue) as sender:
                    sender.send_messages(ServiceBusMessage("one"))

            raises(ServiceBusAuthenticationError, send)

        check("a_wrong_key_is_refused", wrong_key)
    of_sessions = [name for name in vars(SessionChecks) if name.startswith(("session_", "fault_"))]
    for name in [*vars(Checks), *of_sessions]:
        if not name.startswith("__"):
            check(name, getattr(checks, name))
    print("done", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
