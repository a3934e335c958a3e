"""How people and programs look into a running job, and what they may order of it.

    messages, snapshot    the vocabulary: tagged Structs, versioned by PROTOCOL
    pointer               runs/NAME/control.json: where the sockets are
    server, hub, desk     the controller's side: links; snapshots and news; orders
    client                the other side: commands, the dashboard

Knows the wire and the core's orders, not the core itself: what is in a snapshot is gathered by `libra.controller`. No torch.
"""
