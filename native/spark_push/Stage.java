package io.hopsml;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/** A process of a hopsml agent that stores rows. */
final class Stage {
  final String url; // its name in tables
  final String host;
  final int port; // of the server for Arrow files
  final String token;
  final String certificate; // PEM, in base 64
  private final String hostname;
  private final String folder;

  private Stage(String[] words) {
    url = words[0];
    host = words[1];
    port = Integer.parseInt(words[2]);
    token = words[3];
    certificate = words[4];
    hostname = words[5];
    folder = words[6];
  }

  /**
   * {@code stages}: a line for each, of url, host, port, token, certificate, name of the machine and folder, separated
   * by tabs.
   */
  static List<Stage> parse(String stages) {
    List<Stage> found = new ArrayList<>();
    for (String line : stages.split("\n")) {
      found.add(new Stage(line.split("\t", 7)));
    }
    return found;
  }

  /**
   * Chooses a stage on this machine if there is one, in rotation; after a failure another one on any machine. As in
   * push.py.
   */
  static Stage choose(List<Stage> stages, int partition, int attempt) {
    List<Stage> near = stages.stream().filter(Stage::isHere).collect(Collectors.toList());
    List<Stage> among = near.isEmpty() || attempt > 0 ? stages : near;
    return among.get((partition + attempt) % among.size());
  }

  /** Returns true if its files can be written from this process. */
  private boolean isHere() {
    return hostname.equals(hostname()) && Files.isWritable(Paths.get(folder));
  }

  private static String hostname() {
    try {
      return new String(Files.readAllBytes(Paths.get("/proc/sys/kernel/hostname")), StandardCharsets.UTF_8).trim();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Begins to send an attempt at a partition. */
  Delivery open(String name, int partition, long attempt) throws IOException {
    String file = "data-" + name + "/" + partition + "-" + attempt + ".arrow"; // as in frame_log.py
    return isHere() ? new FileDelivery(Paths.get(folder), file) : new SocketDelivery(this, file);
  }
}
