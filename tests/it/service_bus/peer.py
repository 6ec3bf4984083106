"""Microsoft's client for Python at both ends of `trafficcop work --service-bus`. Started by peer.rs:

    peer.py send CONNECTION QUEUE      sends fifty messages of all sizes and types of content
    peer.py dead CONNECTION QUEUE      reads the dead-letter queue: one JSON line for each message
    peer.py left CONNECTION QUEUE      prints how many messages can be had from the queue
    peer.py talk CONNECTION QUEUE      sends ten messages to each of ten sessions, in turn
    peer.py states CONNECTION QUEUE    one JSON line for each of them: its state, and what is left of it
    peer.py letters CONNECTION QUEUE   reads the dead letters of sessions: one JSON line for each
"""

import json
import sys

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

SESSIONS = [f"session {number}" for number in range(10)]

SIZES = [0, 1, 255, 4096, 65_536, 300_000]
TYPES = [None, "text/plain", "application/json; charset=utf-8", "application/octet-stream"]


def body(number):
    """Every byte there is, NUL and 0xff included; the first says which message it is."""
    size = SIZES[number % len(SIZES)]
    return bytes([number]) + bytes((number + at * 7) % 256 for at in range(size))


def main(what, connection, queue):
    client = ServiceBusClient.from_connection_string(connection)
    with client:
        if what == "send":
            with client.get_queue_sender(queue) as sender:
                for number in range(50):
                    sender.send_messages(
                        ServiceBusMessage(
                            body(number),
                            message_id=f"message-{number}",
                            content_type=TYPES[number % len(TYPES)],
                            application_properties={"number": number, "of": "fifty"},
                        )
                    )
        elif what == "dead":
            receiver = client.get_queue_receiver(
                queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=3
            )
            with receiver:
                for message in receiver:
                    raw = b"".join(message.body)
                    number = int(message.message_id.split("-")[1])
                    print(
                        json.dumps(
                            {
                                "number": number,
                                "reason": message.dead_letter_reason,
                                "description": message.dead_letter_error_description,
                                "count": message.delivery_count,
                                "type": message.content_type,
                                "whole": raw == body(number),
                            }
                        )
                    )
                    receiver.complete_message(message)
        elif what == "talk":
            with client.get_queue_sender(queue) as sender:
                for number in range(10):
                    for session in SESSIONS:
                        sender.send_messages(
                            ServiceBusMessage(
                                str(number), session_id=session, message_id=f"{session}: {number}"
                            )
                        )
        elif what == "states":
            for session in SESSIONS:
                with client.get_queue_receiver(queue, session_id=session, max_wait_time=1) as receiver:
                    state = receiver.session.get_state()
                    left = [str(message) for message in receiver.peek_messages(100)]
                    state = None if state is None else state.decode()
                    print(json.dumps({"session": session, "state": state, "left": left}))
        elif what == "letters":
            receiver = client.get_queue_receiver(
                queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=3
            )
            with receiver:
                for message in receiver:
                    letter = {"session": message.session_id, "body": str(message)}
                    letter["reason"] = message.dead_letter_reason
                    print(json.dumps(letter))
                    receiver.complete_message(message)
        else:
            receiver = client.get_queue_receiver(
                queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, max_wait_time=2
            )
            with receiver:
                print(sum(1 for _ in receiver))


main(*sys.argv[1:])
