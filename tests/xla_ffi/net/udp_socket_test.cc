#include "net/udp_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <system_error>

#include "../tests/xla_ffi/net/loopback_group.h"
#include "net/socket_address.h"
#include "net/udp_driver.h"

namespace passing {
namespace {

struct Datagram {
  std::vector<uint8_t> bytes;
  Address source;
};

// Whatever arrives until `count` datagrams are there, or none came for ten seconds.
std::vector<Datagram> ReceiveAll(UdpSocket& socket, size_t count) {
  std::vector<Datagram> datagrams;
  while (datagrams.size() < count) {
    pollfd readable{.fd = socket.fd(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 10'000) <= 0) break;
    socket.Receive([&](std::span<const uint8_t> datagram, const Address& source) {
      datagrams.push_back({{datagram.begin(), datagram.end()}, source});
    });
  }
  return datagrams;
}

std::vector<uint8_t> Pattern(const std::vector<uint16_t>& sizes) {
  std::vector<uint8_t> bytes(std::accumulate(sizes.begin(), sizes.end(), size_t{0}));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
  return bytes;
}

void ExpectPattern(const std::vector<Datagram>& datagrams, const std::vector<uint16_t>& sizes) {
  ASSERT_EQ(datagrams.size(), sizes.size());
  const std::vector<uint8_t> bytes = Pattern(sizes);
  size_t offset = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(datagrams[i].bytes.size(), sizes[i]) << i;
    ASSERT_TRUE(std::equal(datagrams[i].bytes.begin(), datagrams[i].bytes.end(),
                           bytes.begin() + static_cast<ptrdiff_t>(offset)))
        << i;
    offset += sizes[i];
  }
}

class UdpSocketPair : public testing::TestWithParam<std::tuple<const char*, bool>> {
 protected:
  UdpSocketPair() {
    if (!std::get<1>(GetParam())) client_.DisableSegmentation(), server_.DisableSegmentation();
  }
  const char* host_ = std::get<0>(GetParam());
  UdpSocket server_ = UdpSocket::BoundTo(host_, 0);
  UdpSocket client_ = UdpSocket::ConnectedTo(host_, server_.port());
};

TEST_P(UdpSocketPair, send_arrivesWholeAndInOrder) {
  std::vector<uint16_t> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(i % 50 == 49 ? 24 : i % 70 == 3 ? 1000 : 1460);
  client_.Send(Pattern(sizes).data(), sizes);
  const std::vector<Datagram> datagrams = ReceiveAll(server_, sizes.size());
  ExpectPattern(datagrams, sizes);
  EXPECT_EQ(datagrams[0].source, ResolveAddress(host_, client_.port()));
  EXPECT_EQ(client_.stats().datagrams_unsent, 0u);
  if (!client_.segmentation() && std::get<1>(GetParam())) {
    GTEST_SKIP() << "this kernel refuses UDP_SEGMENT; the fallback was tested";
  }
}

TEST_P(UdpSocketPair, send_toManyDestinations) {
  std::vector<UdpSocket> clients;
  std::vector<Address> destinations;
  for (int i = 0; i < 40; ++i) {  // more messages than one sendmmsg takes
    clients.push_back(UdpSocket::ConnectedTo(host_, server_.port()));
    destinations.push_back(ResolveAddress(host_, clients.back().port()));
  }
  const std::vector<uint16_t> sizes(50, 1460);
  server_.Send(Pattern(sizes).data(), sizes, destinations);
  for (UdpSocket& client : clients) ExpectPattern(ReceiveAll(client, sizes.size()), sizes);
}

TEST_P(UdpSocketPair, send_survivesAClosedPeer) {
  const std::vector<uint16_t> sizes(3, 100);
  UdpSocket orphan = [&] {
    UdpSocket short_lived = UdpSocket::BoundTo(host_, 0);
    return UdpSocket::ConnectedTo(host_, short_lived.port());
  }();
  for (int i = 0; i < 10; ++i) {
    orphan.Send(Pattern(sizes).data(), sizes);
    EXPECT_EQ(ReceiveAll(orphan, 0).size(), 0u);
    EXPECT_EQ(orphan.Receive([](std::span<const uint8_t>, const Address&) {}), 0u);
  }
  EXPECT_GT(orphan.stats().errors_reported, 0u);
}

TEST_P(UdpSocketPair, receive_emptyAndLargestDatagram) {
  client_.DisableSegmentation();
  const std::vector<uint16_t> sizes = {0, 65'507, 1};
  client_.Send(Pattern(sizes).data(), sizes);
  ExpectPattern(ReceiveAll(server_, 3), sizes);
}

TEST_P(UdpSocketPair, receive_nothingThere) {
  EXPECT_EQ(server_.Receive([](std::span<const uint8_t>, const Address&) { FAIL(); }), 0u);
}

// Packet i is as long as sizes[i] says and filled with i.
void SendNumbered(UdpDriver& driver, const std::vector<uint16_t>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::memset(driver.Reserve(), static_cast<int>(i), sizes[i]);
    driver.Commit(sizes[i]);
  }
  driver.Flush();
  driver.Flush();
}

TEST_P(UdpSocketPair, driver_sendsWhatWasCommitted) {
  for (const uint16_t short_bytes : {64, 300, 1000}) {
    const size_t full_bytes = short_bytes == 300 ? wire::kMaxPacketBytes : wire::kPacketBytesAtMtu1500;
    UdpDriver driver(client_, full_bytes);
    std::vector<uint16_t> sizes;
    for (int i = 0; i < 200; ++i) sizes.push_back(i % 64 >= 40 ? short_bytes : static_cast<uint16_t>(full_bytes));
    SendNumbered(driver, sizes);
    std::vector<bool> arrived(sizes.size());
    for (const Datagram& datagram : ReceiveAll(server_, sizes.size())) {
      const uint8_t number = datagram.bytes.at(0);
      EXPECT_FALSE(arrived[number]);
      arrived[number] = true;
      EXPECT_EQ(datagram.bytes, std::vector<uint8_t>(sizes[number], number));
    }
    EXPECT_EQ(std::count(arrived.begin(), arrived.end(), true), 200);
  }
}

TEST_P(UdpSocketPair, driver_keepsTheOrderOfSmallPacketsThatAreFull) {
  UdpDriver driver(client_, 276);
  SendNumbered(driver, std::vector<uint16_t>(20, 276));
  std::vector<uint8_t> order, expected(20);
  for (const Datagram& datagram : ReceiveAll(server_, 20)) order.push_back(datagram.bytes.at(0));
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(UdpSocketPair, sendUncut_arrives) {
  const auto [bytes, header_bytes] = client_.path_mtu();
  EXPECT_GE(bytes, header_bytes + wire::kMaxPacketBytes);  // of the loopback interface
  const std::vector<uint8_t> sent(wire::kMaxPacketBytes, 7);
  client_.SendUncut(sent);
  const std::vector<Datagram> there = ReceiveAll(server_, 1);
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there[0].bytes, sent);
  server_.SendUncut(sent, &there[0].source);
  EXPECT_EQ(ReceiveAll(client_, 1).size(), 1u);
  client_.SendUncut(std::vector<uint8_t>(kMaxUdpBytes + 1));  // nobody can send that: it is lost
  poll(nullptr, 0, 10);
  EXPECT_EQ(server_.Receive([](std::span<const uint8_t>, const Address&) { FAIL(); }), 0u);
}

// So that they don't end the run of the full ones.
TEST_P(UdpSocketPair, driver_sendsShortPacketsLast) {
  UdpDriver driver(client_);
  SendNumbered(driver, {64, wire::kPacketBytesAtMtu1500, 64, wire::kPacketBytesAtMtu1500});
  std::vector<uint8_t> order;
  for (const Datagram& datagram : ReceiveAll(server_, 4)) order.push_back(datagram.bytes.at(0));
  EXPECT_EQ(order, (std::vector<uint8_t>{1, 3, 0, 2}));
}

// Headers without lanes, among full packets.
TEST_P(UdpSocketPair, driver_letsFewPacketsOvertake) {
  UdpDriver driver(client_);
  std::vector<uint16_t> sizes;
  for (int i = 0; i < 250; ++i) sizes.push_back(i % 100 < 60 ? wire::kHeaderBytes : wire::kPacketBytesAtMtu1500);
  SendNumbered(driver, sizes);
  uint32_t latest = 0;
  for (const Datagram& datagram : ReceiveAll(server_, sizes.size())) {
    const uint32_t number = datagram.bytes.at(0);
    latest = std::max(latest, number);
    EXPECT_LT(latest - number, wire::kReorderedChunks);
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, UdpSocketPair, testing::Combine(testing::Values("127.0.0.1", "::1"), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::strcmp(std::get<0>(info.param), "::1") == 0 ? "IPv6" : "IPv4") +
                                  (std::get<1>(info.param) ? "Segmented" : "Plain");
                         });

TEST(UdpSocket, boundToAnyIPv6_alsoServesIPv4) {
  UdpSocket server = UdpSocket::BoundTo("::", 0);
  UdpSocket client = UdpSocket::ConnectedTo("127.0.0.1", server.port());
  const std::vector<uint16_t> sizes = {24};
  client.Send(Pattern(sizes).data(), sizes);
  const std::vector<Datagram> datagrams = ReceiveAll(server, 1);
  ExpectPattern(datagrams, sizes);
  const Address native = server.Native(ResolveAddress("127.0.0.1", client.port()));
  EXPECT_EQ(datagrams[0].source, native);
  server.Send(Pattern(sizes).data(), sizes, {&native, 1});
  ExpectPattern(ReceiveAll(client, 1), sizes);
}

// The kernel itself would take 127.0.0.1, which these clients don't hear.
TEST(UdpSocket, send_leavesFromTheAddressesThatAreSaid) {
  const std::vector<uint16_t> sizes(50, 1460);
  for (const char* any : {"0.0.0.0", "::"}) {
    for (const bool segmented : {true, false}) {
      UdpSocket server = UdpSocket::BoundTo(any, 0);
      if (!segmented) server.DisableSegmentation();
      std::vector<UdpSocket> clients;
      std::vector<Address> destinations, from;
      for (const char* own : {"127.0.0.2", "127.0.0.3"}) {
        clients.push_back(UdpSocket::ConnectedTo(own, server.port()));
        destinations.push_back(server.Native(ResolveAddress("127.0.0.1", clients.back().port())));
        from.push_back(server.Native(ResolveAddress(own, 0)));
      }
      server.Send(Pattern(sizes).data(), sizes, destinations, BatchSender::kWaitMs, from);
      for (UdpSocket& client : clients) ExpectPattern(ReceiveAll(client, sizes.size()), sizes);
      EXPECT_EQ(server.stats().datagrams_unsent, 0u);
    }
  }
}

TEST(UdpSocket, send_doesWithoutSegmentationForAWhileWhenItIsRefused) {
  UdpSocket server = UdpSocket::BoundTo("127.0.0.1", 0);
  UdpSocket client = UdpSocket::ConnectedTo("127.0.0.1", server.port());
  const auto set_no_check = [&](int on) {  // Linux doesn't cut super-packets whose checksum nobody computes
    ASSERT_EQ(setsockopt(client.fd(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  };
  set_no_check(1);
  const std::vector<uint16_t> sizes(100, 1460);
  for (int i = 0; i < 2; ++i) {
    client.Send(Pattern(sizes).data(), sizes);
    ExpectPattern(ReceiveAll(server, sizes.size()), sizes);
    EXPECT_FALSE(client.segmentation());
  }
  set_no_check(0);
  const std::vector<uint16_t> small = {24};
  for (uint32_t i = 1; i < BatchSender::kSendsAfterRefusal; ++i) {
    EXPECT_FALSE(client.segmentation());
    client.Send(Pattern(small).data(), small);
    ExpectPattern(ReceiveAll(server, 1), small);
  }
  EXPECT_TRUE(client.segmentation());
  client.Send(Pattern(sizes).data(), sizes);
  ExpectPattern(ReceiveAll(server, sizes.size()), sizes);
  EXPECT_TRUE(client.segmentation());
  EXPECT_EQ(client.stats().datagrams_unsent, 0u);
}

// Several sockets of one port hear each its own peer, and each peer sees the same port.
TEST(UdpSocket, toPort_hearsThatPortAlone) {
  for (const char* host : {"127.0.0.1", "::1"}) {
    std::vector<UdpSocket> servers;
    for (int i = 0; i < 3; ++i) servers.push_back(UdpSocket::BoundTo(host, 0));
    std::vector<UdpSocket> clients;
    clients.push_back(UdpSocket::ConnectedTo(host, servers[0].port()));
    for (int i = 1; i < 3; ++i) clients.push_back(clients[0].ToPort(servers[i].port()));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(clients[i].port(), clients[0].port());
      const std::vector<uint16_t> sizes(10 + i, 100);
      clients[i].Send(Pattern(sizes).data(), sizes);
      const std::vector<Datagram> received = ReceiveAll(servers[i], sizes.size());
      ExpectPattern(received, sizes);
      EXPECT_EQ(received[0].source, ResolveAddress(host, clients[0].port()));
      servers[i].Send(Pattern(sizes).data(), sizes, {&received[0].source, 1});
      ExpectPattern(ReceiveAll(clients[i], sizes.size()), sizes);
    }
  }
}

TEST(UdpSocket, joinGroup_severalHearWhatTheirPeerSends) {
  if (!LoopbackCarriesMulticast()) GTEST_SKIP() << "no multicast on this machine's loopback interface";
  const std::vector<uint16_t> sizes = {1460, 1460, 1460, 24};
  for (const char* bound : {"127.0.0.1", "0.0.0.0", "::"}) {
    UdpSocket sender = UdpSocket::BoundTo(bound, 0);
    UdpSocket stranger = UdpSocket::BoundTo(bound, 0);
    const Address group = LoopbackGroup();
    UdpSocket own[] = {UdpSocket::ConnectedTo("127.0.0.1", sender.port()),
                       UdpSocket::ConnectedTo("127.0.0.1", sender.port())};
    UdpSocket joined[] = {own[0].JoinGroup(group), own[1].JoinGroup(group)};
    for (UdpSocket* socket : {&stranger, &sender}) {  // the stranger first: what it sends would arrive first
      ASSERT_TRUE(socket->MulticastFrom(ResolveAddress("127.0.0.1", 0)));
      const Address to = socket->Native(group);
      socket->Send(Pattern(sizes).data(), sizes, {&to, 1});
    }
    for (UdpSocket& host : joined) {
      const std::vector<Datagram> datagrams = ReceiveAll(host, sizes.size());
      ExpectPattern(datagrams, sizes);
      EXPECT_EQ(datagrams[0].source, ResolveAddress("127.0.0.1", sender.port()));
      EXPECT_EQ(host.Receive([](std::span<const uint8_t>, const Address&) { FAIL(); }), 0u) << "the stranger's";
    }
    for (UdpSocket& host : own) EXPECT_EQ(host.Receive([](std::span<const uint8_t>, const Address&) { FAIL(); }), 0u);
  }
}

TEST(UdpSocket, joinGroup_throwsWhereThereIsNone) {
  UdpSocket server = UdpSocket::BoundTo("127.0.0.1", 0);
  const UdpSocket client = UdpSocket::ConnectedTo("127.0.0.1", server.port());
  EXPECT_THROW(client.JoinGroup(ResolveAddress("127.0.0.1", 7000)), std::system_error);  // no multicast address
  EXPECT_THROW(client.JoinGroup(ResolveAddress("ff15::1", 7000)), std::system_error);
  EXPECT_THROW(server.JoinGroup(LoopbackGroup()), std::system_error);  // it has no peer
  EXPECT_FALSE(server.MulticastFrom(ResolveAddress("198.51.100.1", 0)));
  EXPECT_FALSE(server.MulticastFrom(ResolveAddress("::1", 0)));
}

TEST(UdpSocket, throwsWhenItCannot) {
  EXPECT_THROW(ResolveAddress("no-such-host.invalid", 1), std::system_error);
  EXPECT_THROW(NumericAddress("localhost", 1), std::system_error);
  EXPECT_EQ(NumericAddress("127.0.0.1", 7), ResolveAddress("127.0.0.1", 7));
  UdpSocket taken = UdpSocket::BoundTo("127.0.0.1", 0);
  EXPECT_THROW(UdpSocket::BoundTo("127.0.0.1", taken.port()), std::system_error);
}

}  // namespace
}  // namespace passing
