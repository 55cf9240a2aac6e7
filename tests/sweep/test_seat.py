"""Places on GPUs: which comes first, and who has room."""

from __future__ import annotations

from tuner.sweep.seat import Seat


def gpu(places):
    first = Seat()
    return [first, *(first.share() for _ in range(places - 1))]


def begun(*seats):
    for seat in seats:
        seat.begin()
        seat.set_up(0.01)


def test_a_free_place_beside_fewer_problems_comes_first():
    one, other = gpu(3), gpu(3)
    begun(one[1], one[2], other[0])
    free = sorted([one[0], *other[1:]], key=lambda seat: seat.age)
    assert free == [other[1], other[2], one[0]]


def test_the_oldest_problem_comes_first_whichever_place_it_has():
    places = gpu(3)
    begun(places[2], places[0])
    assert [seat.is_first for seat in places] == [False, False, True]
    assert sorted(places, key=lambda seat: seat.age) == [places[2], places[0], places[1]]
    places[2].end()
    assert [seat.is_first for seat in places] == [True, False, False]


def test_a_third_problem_has_room_once_both_others_are_set_up_and_leave_memory():
    places = gpu(3)
    begun(places[0])
    places[1].begin()
    assert not places[2].has_room
    places[1].set_up(0.01)
    assert places[2].has_room
    places[1].begin_anew_alone()
    places[1].set_up(0.01)
    assert not places[2].has_room


def test_who_leaves_is_no_other_any_more():
    places = gpu(3)
    places[1].leave()
    assert places[0].others == (places[2],)
    assert places[2].others == (places[0],)
    assert places[1].others == ()
