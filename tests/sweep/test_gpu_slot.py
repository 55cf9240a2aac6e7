"""Slots on GPUs: which comes first, and which has room."""

from __future__ import annotations

from tuner.sweep.gpu_slot import GpuSlot


def gpu(count):
    first = GpuSlot()
    return [first, *(first.share() for _ in range(count - 1))]


def begun(*slots):
    for slot in slots:
        slot.begin()
        slot.set_up(0.01)


def test_a_free_slot_beside_fewer_problems_comes_first():
    one, other = gpu(3), gpu(3)
    begun(one[1], one[2], other[0])
    free = sorted([one[0], *other[1:]], key=lambda slot: slot.age)
    assert free == [other[1], other[2], one[0]]


def test_the_oldest_problem_comes_first_whichever_slot_it_has():
    slots = gpu(3)
    begun(slots[2], slots[0])
    assert [slot.is_first for slot in slots] == [False, False, True]
    assert sorted(slots, key=lambda slot: slot.age) == [slots[2], slots[0], slots[1]]
    slots[2].end()
    assert [slot.is_first for slot in slots] == [True, False, False]


def test_a_third_problem_has_room_once_both_others_are_set_up_and_leave_memory():
    slots = gpu(3)
    begun(slots[0])
    slots[1].begin()
    assert not slots[2].has_room
    slots[1].set_up(0.01)
    assert slots[2].has_room
    slots[1].restart_alone()
    slots[1].set_up(0.01)
    assert not slots[2].has_room


def test_who_leaves_is_no_other_any_more():
    slots = gpu(3)
    slots[1].leave()
    assert slots[0].others == (slots[2],)
    assert slots[2].others == (slots[0],)
    assert slots[1].others == ()
