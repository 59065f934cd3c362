"""What a switch passes to its parent and back, through several levels."""

from support.switch.control_trees import in_tree, job

from jax_passing.protocol import control_messages as messages


@in_tree(racks=0)
async def test_three_levels(tree, root):
    spine, other = await tree.add(root), await tree.add(root)
    racks = [await tree.add(spine), await tree.add(spine), await tree.add(other)]
    hosts, _ = await job(*racks)
    assert len(root.data_plane.running[1].addresses) == 2
    assert [len(switch.data_plane.running[1].addresses) for switch in (spine, other)] == [2, 1]
    hosts[0].send(messages.Relay(b"order"))
    for host in hosts[1:]:
        assert await host.receive() == messages.Relay(b"order")
    hosts[5].send(messages.Fail("DeadlineExceededError", "late"))
    for host in hosts[:5]:
        assert await host.receive() == messages.Failed("DeadlineExceededError", "late (Reported by rank 5.)")
    await job(*racks)
